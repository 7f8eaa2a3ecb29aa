"""A bug in a function between two stages, found in seconds, without a model: engines are replaced by fakes."""

from hypothesis import strategies as st

from omni_actors import InputSpec, PipelineSpec, StageSpec
from omni_actors.testing import check_pipeline


def caption(upstream, request):
    """The painter gets the poem's first line. (A model may also answer with nothing at all.)"""
    return {"caption": upstream["poet"].text.splitlines()[0]}


def careful_caption(upstream, request):
    """The same, for any poem."""
    lines = upstream["poet"].text.splitlines()
    return {"caption": lines[0] if lines else "untitled"}


def illustrated(transform: str) -> PipelineSpec:
    poet = StageSpec(name="poet", engine="vllm", model="Qwen/Qwen3-0.6B", output="text", params={"max_tokens": 64})
    painter = StageSpec(
        name="painter",
        engine="generation",
        model="my_models:Painter",  # not even looked for
        replicas=2,
        inputs=[InputSpec(stage="poet")],
        transform=f"find_a_bug:{transform}",
        output="image",
    )
    return PipelineSpec(name="illustrated", stages=[poet, painter])


# What the stages may make: any text; one to three pieces of an image.
OUTPUTS = {"poet": st.text(max_size=60), "painter": st.lists(st.binary(min_size=1, max_size=8), min_size=1, max_size=3)}


def main() -> None:
    try:
        check_pipeline(illustrated("caption"), OUTPUTS, examples=200, seed=3)
    except AssertionError as found:
        print(found)
    proof = check_pipeline(illustrated("careful_caption"), OUTPUTS, examples=50, seed=3)
    print(f"\nWith careful_caption: {proof.examples} scenarios, no violation.")


if __name__ == "__main__":
    main()
