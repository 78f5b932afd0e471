"""Where a model's tokenizer comes from: this machine, or the Hugging Face hub."""
