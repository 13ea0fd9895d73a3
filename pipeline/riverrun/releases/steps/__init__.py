"""Steps of a release: plan, start, reprocess, gate, cut over, roll back, retire.

`releaser` takes them one by one and `chain` several in a row; `step_checks` decides whether a step may be taken. `release_plan`
and `rehearsal` say what will be done, `forecast` and `readiness` how long it takes.
"""

from __future__ import annotations
