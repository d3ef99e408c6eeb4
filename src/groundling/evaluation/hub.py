"""Download and upload of published policies at the Hugging Face hub."""

import glob
import re
from pathlib import Path

from groundling.errors import RunError
from groundling.io.documents import read_object
from groundling.training import checkpoint

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_id(name: str) -> bool:
    """True for a repository's name, OWNER/NAME."""
    return _ID.fullmatch(name) is not None


def fetch(repository: str, revision: str | None = None) -> Path:
    """Download the files in a published policy's manifest, and no others, into the hub's cache; return the folder."""
    from huggingface_hub import hf_hub_download, snapshot_download

    try:
        manifest = hf_hub_download(repository, checkpoint.MANIFEST, revision=revision)
        names = [*read_object(Path(manifest)), checkpoint.MANIFEST, "config.yaml"]
        patterns = [glob.escape(name) for name in names]
        return Path(snapshot_download(repository, revision=revision, allow_patterns=patterns))
    except Exception as error:  # the hub's client also raises errors of httpx and others
        reason = " ".join(str(error).split()) or type(error).__name__
        raise RunError(f"could not get {repository} from the hub: {reason:.300}") from error


def upload(folder: Path, repository: str, private: bool) -> str:
    """Upload an exported folder to the hub, with the token of ``hf auth login`` or HF_TOKEN; return its URL."""
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        address = api.upload_folder(repo_id=repository, folder_path=folder)
    except Exception as error:  # the hub's client also raises errors of httpx and others
        reason = " ".join(str(error).split()) or type(error).__name__
        raise RunError(f"could not upload {folder} to {repository}: {reason}; the folder stays") from error
    return str(address)
