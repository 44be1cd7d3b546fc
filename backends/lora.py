"""LoRA adapters of the local backend (peft): a fresh one, one from a folder, and what an adapter's folder says.

    peft = add_adapter(model, rank=32, alpha=32, seed=0)        # on every linear layer of the language model
    peft = load_adapter(model, "runs/sft/checkpoints/step-000100/sampler", trainable=True)
"""

from __future__ import annotations

from pathlib import Path

import torch

from backends.model import TOWERS, Model


def adapter_config(path) -> dict:
    """The adapter_config.json of a folder; {} if it isn't an adapter's."""
    import json

    file = Path(path) / "adapter_config.json"
    return json.loads(file.read_text()) if file.is_file() else {}


def add_adapter(model: Model, rank: int, alpha: int, seed: int):
    """A fresh LoRA on every linear layer of the language model (not on the tower, not on the head). Returns the peft model."""
    from peft import LoraConfig, get_peft_model

    language = getattr(model.inner, "language_model", model.inner)
    names = sorted({name.rpartition(".")[2] for name, module in language.named_modules() if isinstance(module, torch.nn.Linear)})
    torch.manual_seed(seed)
    towers = rf"(.*\.)?({'|'.join(TOWERS)})\..*" if model.vision_modules() else None  # a tower may use the same names
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=names, exclude_modules=towers)
    return count_adapted(model, get_peft_model(model.net, config))


def load_adapter(model: Model, path, trainable: bool):
    """The LoRA of an adapter folder. Tensors that fit nowhere are an error: peft only warns, and then the base is trained or sampled."""
    from peft import PeftModel, get_peft_model_state_dict
    from peft.utils import load_peft_weights

    try:
        peft = PeftModel.from_pretrained(model.net, path, is_trainable=trainable)
        saved = load_peft_weights(path, device="cpu")
    except Exception as error:
        raise SystemExit(f"adapter {str(path)!r} can't be loaded onto {model.name!r}: {str(error).strip().splitlines()[0]}") from error
    here = get_peft_model_state_dict(peft, save_embedding_layers=False)
    if different := saved.keys() ^ here.keys():
        count = len(different)
        raise SystemExit(f"adapter {str(path)!r} doesn't fit {model.name!r}: {count} tensors have no partner, such as {min(different)}")
    return count_adapted(model, peft)


def count_adapted(model: Model, peft):
    if not any(hasattr(module, "lora_A") for module in model.net.modules()):
        raise SystemExit(f"model {model.name!r}: no linear layer of its language model was found for the LoRA")
    peft.eval()
    return peft
