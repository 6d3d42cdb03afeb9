"""Stories in which nodes and the links between them are slow for a while."""

from dataclasses import replace

from hypothesis import strategies as st

from rtk.planners.recovery.job import TrainingJob
from rtk.schemas.replay import Fleet, Moment

from .stories import Story, stories

FACTORS, DELAYS_S = (1.05, 1.5, 3.0), (0.1, 2.0)


@st.composite
def slow_stories(draw: st.DrawFn, job: TrainingJob, most_moments: int = 4) -> Story:
    """A story of nodes that come and go, in which some of those that are there are slow."""
    story = draw(stories(job, most_moments))
    moments = tuple(replace(moment, fleet=draw(slowed(moment.fleet))) for moment in story.moments)
    return Story(draw(slowed(story.began)), moments)


@st.composite
def slowed(draw: st.DrawFn, fleet: Fleet) -> Fleet:
    """A fleet in which up to two nodes and two links, perhaps those inside a node, are slow."""
    if not fleet.nodes:
        return fleet
    nodes = st.sampled_from(fleet.nodes)
    pairs = st.tuples(nodes, nodes).map(lambda pair: (min(pair), max(pair)))
    slow = draw(st.dictionaries(nodes, st.sampled_from(FACTORS), max_size=2))
    return replace(fleet, slow=slow, slow_links=draw(st.dictionaries(pairs, st.sampled_from(DELAYS_S), max_size=2)))


def slow_moment(time_s: float, fleet: Fleet) -> Moment:
    """Nothing but what is slow changes."""
    return Moment(time_s, fleet)
