"""A bundle as a folder for the Hugging Face hub, and its upload."""

from __future__ import annotations

import re
from pathlib import Path

from rl_training.config import parse_config
from rl_training.errors import BundleError, MissingExtraError
from rl_training.export.bundle import CONFIG, bundle_files, require_free, write_folder
from rl_training.export.contract import Contract

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


def prepare_share(path: Path, repository: str, output: Path, *, overwrite: bool = False) -> Contract:
    """Write the folder that ``push_share`` uploads: the bundle with its model card, and ``config.yaml``.

    It holds no replay data, no optimiser state, and no path of this machine.

    Args:
        path: a run (its best checkpoint is taken) or a checkpoint.
        repository: where it will go, such as ``user/point-reach``.
        output: the folder to write.
        overwrite: whether to replace a folder that this function wrote.
    """
    require_repository(repository)
    require_free(output, overwrite)
    contract, files = bundle_files(path)
    write_folder(output, files | {CONFIG: parse_config(contract.training["config"]).to_yaml().encode()})
    return contract


def push_share(folder: Path, repository: str, *, private: bool = False) -> str:
    """Upload a prepared folder as a model repository, made if it does not exist, and return its address."""
    require_repository(repository)
    require_hub()
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        address = api.create_repo(repository, repo_type="model", private=private, exist_ok=True)
        api.upload_folder(folder_path=folder, repo_id=repository, commit_message="Upload a policy of rl_training")
    except Exception as error:  # wrong token, no network, no permission: each has a class of its own
        reason = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
        raise BundleError(
            f"--hub {repository}: the upload failed: {reason}. The folder is kept in {folder}; to log in, run"
            " `hf auth login` or set HF_TOKEN"
        ) from None
    return str(address)


def require_hub() -> None:
    """Raise an error that names the extra if ``huggingface_hub`` is not installed."""
    try:
        import huggingface_hub  # noqa: F401
    except ImportError:
        raise MissingExtraError("uploading to the Hugging Face hub", "hub") from None


def require_repository(name: str) -> None:
    """Refuse what is not the name of a repository."""
    if not _REPOSITORY.fullmatch(name) or ".." in name or "--" in name or name.endswith((".git", ".", "-")):
        raise BundleError(f"--hub {name!r}: expected a repository such as user/point-reach")
