"""Scorers behind an OpenAI-compatible endpoint: vLLM, SGLang, TGI or a hosted one.

options.py   the name `openai:<model>@<url>`, its options, and the token
chat.py      one question as a request, and the probability of "yes" in its answer
http.py      connections that are kept open, one per thread
asking.py    retries, waits, rate limits, and when to stop
scorer.py    `EndpointScorer`, and the check before a study
"""
