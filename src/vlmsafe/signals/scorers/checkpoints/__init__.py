"""The scorer `transformers:<model>`: any checkpoint that transformers loads, by its own processor.

- `names`: the argument, and what a checkpoint's configuration says; imports no model library
- `files`: the folder of a checkpoint, the weights in it, and whether it can be used
- `lora`: adds a low-rank adapter to the weights
- `dual`: cosines of any dual encoder
- `chat`: yes/no probabilities of any chat model with images
- `load`: one of the two, by the configuration
"""
