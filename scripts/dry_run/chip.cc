// Preloaded: sets the Ascend chip that MindSpore compiles for, and its number of cores.
// ZOO_DRY_RUN_CHIP: ascend910, ascend910b, ascend910_93. ZOO_DRY_RUN_CORES: a number.
#include <dlfcn.h>
#include <stdlib.h>

#include <string>
#include <thread>

namespace mindspore {
class MsContext {
 public:
  void set_ascend_soc_version(const std::string &);
};
}  // namespace mindspore

void mindspore::MsContext::set_ascend_soc_version(const std::string &version) {
  typedef void (*Setter)(void *, const std::string &);
  void *core = dlopen("libmindspore_core.so", RTLD_NOW | RTLD_NOLOAD);
  Setter real = (Setter)dlsym(core, "_ZN9mindspore9MsContext22set_ascend_soc_versionERKSs");
  const char *chip = getenv("ZOO_DRY_RUN_CHIP");
  std::string simulated = chip ? chip : version;
  real(this, simulated);
}

static int simulated_cores() {
  const char *cores = getenv("ZOO_DRY_RUN_CORES");
  return cores && atoi(cores) > 0 ? atoi(cores) : 24;
}

unsigned std::thread::hardware_concurrency() noexcept { return simulated_cores(); }
extern "C" int get_nprocs(void) { return simulated_cores(); }
