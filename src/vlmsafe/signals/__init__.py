"""Vision-language signals: prompts, scorers, rules, gate, shaping."""
