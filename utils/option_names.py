"""Options of other code bases, and what stands in their place here.

Their sources: mindspore-ai/models, mindcv, zjut_mindvideo, the X3D of Ascend/ModelZoo-PyTorch,
PySlowFast, mit-han-lab TSM, torchvision. docs/migration/ has their tables.
"""

import re
from collections.abc import Container

# Ours -> theirs. Of several lines with a name, the first whose option or setting the command has
# counts. Names that are similar to ours, such as `weight_decay`, are not here.
OPTIONS = {
    "--config_path": "c config cfg config_file recipe yaml",
    "--checkpoint_path": "checkpoint_file_path ckpt_path ckpt_file ckpt pth_path load_path weights",
    "--source": "checkpoint_file_path ckpt_path ckpt_file ckpt pth_path weights",
    "--train.pretrained": "checkpoint_file_path ckpt_path ckpt_file ckpt pth_path pretrain "
    "pretrained_model tune_from load_from load_path weights",
    "--run.device": "device_target platform",
    "--data.root": "data_path data_dir dataset_path root_path",
    "--data.batch (in tests --eval.batch)": "batch_size per_batch_size",
    "--data.workers": "num_parallel_workers num_workers j",
    "--data.crop": "image_size image_resize train_image_size input_size train_crop_size",
    "--eval.crop": "eval_image_size test_crop_size",
    "--data.segments": "num_segments test_segments",
    "--data.repeats": "aug_repeats ra_reps",
    "--data.erase": "re_prob random_erase",
    "--data.policy": "auto_augment",
    "--model.arch": "model net net_name model_name backbone",
    "--model.num_classes": "class_num num_class nb_classes",
    "--model.dropout": "drop_rate dropout_rate dropout_ratio keep_prob",
    "--train.epochs": "epoch_size max_epoch num_epochs",
    "--train.lr": "lr_max learning_rate base_lr",
    "--train.end_lr": "lr_end min_lr eta_min",
    "--train.warmup_lr": "lr_init warmup_factor",
    "--train.schedule": "lr_decay_mode scheduler lr_scheduler lr_type",
    "--train.milestones": "lr_steps multi_step_decay_milestones",
    "--train.optimizer": "opt",
    "--train.smoothing": "label_smoothing label_smooth_factor use_label_smooth",
    "--train.clip_norm": "clip_grad clip_value clip_gradient gd",
    "--train.accumulation_steps": "gradient_accumulation_steps",
    "--train.ema_decay": "ema",
    "--run.amp": "amp_level val_amp_level opt_level use_amp",
    "--run.dynamic_loss_scale": "loss_scale_type drop_overflow_update",
    "--run.sink": "dataset_sink_mode sink_mode",
    "--run.all_reduce": "all_reduce_fusion_config",
    "--out": "output_dir output_path",
    "--run.out": "output_dir output_path ckpt_save_dir save_checkpoint_path",
    "--run.save_every": "save_checkpoint_epochs ckpt_save_interval",
    "--run.keep_checkpoints": "keep_checkpoint_max",
    "--run.keep_best": "save_best_ckpt ckpt_save_policy",
    "--run.eval_every": "run_eval val_while_train val_interval eval_interval eval_freq",
    "--run.log_every": "log_interval print_freq",
    "--run.resume, and the same command again": "resume_ckpt resume_opt",
    "--run.mode": "mode_name",
    "--run.profile": "enable_profiling",
    "--target": "file_name",
    "--format": "file_format",
}
# Theirs, or our old ones -> what replaces them, if that is neither an option nor a setting.
LAUNCH = "python scripts/launch.py DEVICES tsm/train.py ... runs on several devices"
MODELARTS = "docs/clusters.md has the commands for ModelArts"
OTHERS = {
    **dict.fromkeys(("run_distribute", "distribute", "device_num", "rank_size"), LAUNCH),
    **dict.fromkeys(("gpus", "num_gpus", "world_size", "launcher", "nproc_per_node"), LAUNCH),
    **dict.fromkeys(("enable_modelarts", "data_url", "train_url", "checkpoint_url"), MODELARTS),
    "device_id": "the variable DEVICE_ID chooses the device: DEVICE_ID=3 python ...",
    "stream": "python scripts/stream.py SOURCE labels a stream",
    "rank_table_file": "the variable RANK_TABLE_FILE names it, for scripts/launch.py",
}


def translate_option(name: str, options: Container[str]) -> str:
    """What another code base's option `--name` is here; empty if it is not known.

    `options` are all that the command has, settings too: `--checkpoint_path`, `--data.root`.
    """
    name = name.lstrip("-").replace("-", "_")
    for ours, theirs in OPTIONS.items():
        if name in theirs.split() and re.match(r"[\w.-]+", ours)[0] in options:
            return f"did you mean {ours}?"
    return OTHERS.get(name, "")
