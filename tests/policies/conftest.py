from tests.lm.conftest import _one_thread, lms, make_lm, tokenizers

__all__ = ["_one_thread", "lms", "make_lm", "tokenizers"]
