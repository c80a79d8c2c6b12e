from fedhold.bench.run import Outputs, Plan, bench

__all__ = ["Outputs", "Plan", "bench"]
