-- Sweeps and studies: one row per measured number of a cell, one per trial, one per study.

drop table benchmarks;

create table benchmarks (            -- one number of one cell of a sweep or benchmark; runs of it are its history
    run_id varchar, benchmark varchar, cell varchar, repeat bigint, name varchar,
    step bigint, value double, unit varchar,
    outcome varchar,                 -- ok, out_of_memory, crash, timeout; a cell that failed has a row without value
    detail varchar, parameters json,
    recorded_at timestamp, seed bigint, hardware varchar, versions json, revision varchar, config_hash varchar,
    segment varchar, extra json,
    primary key (run_id, benchmark, cell, repeat, name)
);

create table studies (
    study varchar primary key,
    run_id varchar, step bigint,
    learner varchar, objectives json, directions json, sampler varchar, pruner varchar, storage varchar,
    search_space json, status varchar,                      -- running, finished, stopped, failed
    trials bigint, completed bigint, pruned bigint, failed bigint,
    best_trial bigint, best_value double, best_values json, best_params json, workers bigint,
    started_at timestamp, ended_at timestamp, wall_time_seconds double,
    recorded_at timestamp, seed bigint, hardware varchar, versions json, revision varchar, config_hash varchar,
    segment varchar, extra json
);

create table trials (
    study varchar, trial bigint,
    run_id varchar, step bigint,                            -- the training run of this trial and where it ended
    state varchar,                                          -- running, complete, pruned, failed
    value double, objective_values json, params json, constraints json, feasible boolean,
    retry_of bigint, worker varchar, reason varchar, config json,
    reward_ema double, sps double, memory_gib double, collisions_per_minute double,
    started_at timestamp, ended_at timestamp, wall_time_seconds double,
    recorded_at timestamp, seed bigint, hardware varchar, versions json, revision varchar, config_hash varchar,
    segment varchar, extra json,
    primary key (study, trial)
);

-- Mean coverage over the course of a flight: {"step": […], "c_vis_percent": […]}.
alter table evaluations add column coverage_curve json;

-- An index over millions of rows makes the file eight times as large, and every reader's copy with it. The writer
-- deletes a row before it inserts the same key again; `navi query --rebuild` counts on nothing else.
create table metrics_without_index as from metrics;
drop table metrics;
alter table metrics_without_index rename to metrics;

create table stage_timings_without_index as from stage_timings;
drop table stage_timings;
alter table stage_timings_without_index rename to stage_timings;
