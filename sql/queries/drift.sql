-- Figures that became slower than the median of its last 7 runs on this hardware.
select benchmark, profile, cell, name, value, baseline, unit, slowdown_percent, benchmark_slowdown_percent,
       cell_drifts or benchmark_drifts as drifts
from drift_vs_baseline order by slowdown_percent desc;
