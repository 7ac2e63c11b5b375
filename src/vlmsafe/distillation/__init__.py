"""Making the scorer that ships with the package: record, caption, train, measure, write. No run needs any of it.

plan.py      how much of everything, and the agents trained for the purpose: some to be recorded, some to be tested on
drivers.py   who drives while frames are recorded: dice, experts with faults, agents
record.py    short episodes with frames and privileged measures, as files
pictures.py  frames as a few hundred bytes
facts.py     what is true of a frame, now and in the seconds after it
grammar.py   how each fact is said, in many wordings
data.py      recordings read back as frames and truths
train.py     the two towers, trained to tell true captions from false ones
ceiling.py   a network on observations, for comparison
measure.py   what the result can tell on scenarios and wordings it never saw
card.py      the model card
build.py     all of it in order
"""
