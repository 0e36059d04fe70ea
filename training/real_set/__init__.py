"""Three agents of Qwen2.5-Coder-0.5B-Instruct, trained by GRPO with verifiable rewards."""
