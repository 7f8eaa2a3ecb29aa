"""Our sides of the benchmarks that run on asyncio; ``omni-actors bench`` starts them as programs."""
