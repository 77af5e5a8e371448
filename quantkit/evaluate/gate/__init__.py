"""Rules of a release, and what came of them.

A rule bounds one figure of a candidate. The bad end of the figure's interval must keep the bound to pass; it fails if
even the estimate breaks the bound; between the two it is undecided: the sample is too small to tell. What was not
measured is undecided too. Without a confidence the estimate alone is judged: kept or broken.

Figures that mean nothing are not judged: an objection (`quantkit.evaluate.gate.judge`) makes the verdict invalid.

Reads a `quantkit.result.Result` and nothing else; knows no model and no file.
"""

from quantkit.evaluate.gate.badge import badge
from quantkit.evaluate.gate.figures import KEYS, unit_of
from quantkit.evaluate.gate.judge import judge, overall, with_verdicts
from quantkit.evaluate.gate.junit import junit_xml
from quantkit.evaluate.gate.rules import rules_for, rules_of
from quantkit.evaluate.gate.wording import bound_text, figure_text, room_text

__all__ = ["KEYS", "badge", "bound_text", "figure_text", "judge", "junit_xml", "with_verdicts"]
__all__ += ["overall", "room_text", "rules_for", "rules_of", "unit_of"]
