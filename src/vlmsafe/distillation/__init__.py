"""Make the embedded scorer: record, caption, train, measure, write its card. Training and evaluating runs never use it.

plan.py      amounts of data and training, and the agents that are recorded and tested
drivers.py   the drivers of recordings: random actions, experts with faults, agents
record.py    short episodes with frames and privileged measures, as files
facts.py     what is true of a frame, at its step and in the seconds after it
grammar.py   captions: every fact in many wordings
data.py      recordings read back as frame stacks and truths
train.py     the training of both towers to distinguish true captions from false ones
ceiling.py   a network on observations, for comparison
measure.py   measurements on scenarios and wordings that training never used
card.py      the model card
build.py     all stages in order
own.py       the same for environments of the user's, with a plan and wordings from files

A scorer of the user's is distilled from a teacher instead, without facts and captions:

distil.py            all stages in order
distil_plan.py       amounts of data and training
sources.py           runs, drivers and environments whose frames are recorded
frames.py            recordings: frames, cost, hazard and observations, as files
stacks.py            recordings read back
teach.py             the teacher, which scores every recorded stack once
student.py           the training of the small model on its similarities
agreement.py         measurements: agreement with the teacher, warning of cost, speed
student_figures.py   everything that is measured
student_card.py      the card
"""
