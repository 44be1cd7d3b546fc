"""Before anything else: without a GPU Triton's kernels run in its interpreter (tests/test_kernels.py), which must be known when Triton is imported."""

import os
import shutil

if not shutil.which("nvidia-smi"):
    os.environ["TRITON_INTERPRET"] = "1"
