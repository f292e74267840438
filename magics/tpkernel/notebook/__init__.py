"""What a person meets in the notebook: magics, bound kernels, completion, the editor."""
