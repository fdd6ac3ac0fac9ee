-- The ten best trials of the latest study with their settings.
select trial, value, params, reward_ema, sps, memory_gib, collisions_per_minute, feasible, run_id from trials
where study = (select study from study_progress limit 1) and state = 'complete' order by value desc nulls last limit 10;
