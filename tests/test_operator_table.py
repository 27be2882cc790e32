"""The lines of docs/migration/operators.md compute PyTorch's numbers."""

from utils.files import ROOT


def test_the_lines_of_the_operator_table_run():
    page = (ROOT / "docs" / "migration" / "operators.md").read_text()
    exec(page.partition("```python\n")[2].partition("```")[0], {})
