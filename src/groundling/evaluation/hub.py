"""The Hugging Face hub: where published policies are put, and where they come from."""

import glob
import re
from pathlib import Path

from groundling.errors import RunError
from groundling.io.documents import read_object
from groundling.training import checkpoint

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_id(name: str) -> bool:
    """Whether a repository could be called so: OWNER/NAME."""
    return _ID.fullmatch(name) is not None


def fetch(repository: str, revision: str | None = None) -> Path:
    """Bring a published policy into the hub's cache: the files that its manifest lists, and nothing else.

    Args:
        repository: OWNER/NAME.
        revision: Branch, tag or commit.

    Returns:
        Its folder.

    Raises:
        RunError: there is no such policy, or the hub cannot be reached.
    """
    from huggingface_hub import hf_hub_download, snapshot_download

    try:
        manifest = hf_hub_download(repository, checkpoint.MANIFEST, revision=revision)
        names = [*read_object(Path(manifest)), checkpoint.MANIFEST, "config.yaml"]
        patterns = [glob.escape(name) for name in names]
        return Path(snapshot_download(repository, revision=revision, allow_patterns=patterns))
    except Exception as error:  # the hub's client raises what its many parts raise, httpx's errors among them
        reason = " ".join(str(error).split()) or type(error).__name__
        raise RunError(f"could not get {repository} from the hub: {reason:.300}") from error


def upload(folder: Path, repository: str, private: bool) -> str:
    """Put an exported folder on the Hugging Face hub, as ``huggingface-cli login`` or HF_TOKEN lets it.

    Returns:
        The address of what was uploaded.

    Raises:
        RunError: the hub refuses it or cannot be reached; the folder stays.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        address = api.upload_folder(repo_id=repository, folder_path=folder)
    except Exception as error:  # the hub's client raises what its many parts raise, httpx's errors among them
        reason = " ".join(str(error).split()) or type(error).__name__
        raise RunError(f"could not upload {folder} to {repository}: {reason}; the folder stays") from error
    return str(address)
