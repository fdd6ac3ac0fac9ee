-- The ten best trials of the latest study with their settings, by the direction it searched in; feasible ones first.
select trial, objective, direction, value, params, reward_ema, sps, memory_gib, collisions_per_minute, feasible, run_id
from ranked_trials where study = (select study from study_progress limit 1) order by place limit 10;
