"""The benchmarks, one per module: see ``omni_actors.cli._bench`` for what each must be."""
