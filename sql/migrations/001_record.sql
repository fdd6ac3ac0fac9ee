-- The tables of the record. Every row carries its run, step, seed, hardware, versions, code revision and
-- configuration hash; the primary key is the row's natural key, by which a repeated row replaces the first;
-- `extra` keeps what a producer sent beyond the columns; `segment` names the file the row came from.

create table segments (
    name varchar primary key,        -- file name in outbox/done
    table_name varchar,              -- null: a mark that drops a run's earlier rows
    run_id varchar not null,
    row_count bigint not null,
    sha256 varchar not null,
    created_at timestamp,
    ingested_at timestamp not null
);

create table metrics (
    run_id varchar, step bigint, name varchar,
    value double,
    recorded_at timestamp, seed bigint, hardware varchar, versions json, revision varchar, config_hash varchar,
    segment varchar, extra json,
    primary key (run_id, step, name)
);

create table runs (
    run_id varchar primary key, step bigint,
    asset varchar, partition varchar, algorithm varchar, encoder varchar, core varchar,
    status varchar, reason varchar, device varchar, path varchar, config json,
    started_at timestamp, ended_at timestamp, wall_time_seconds double, reward_ema double,
    recorded_at timestamp, seed bigint, hardware varchar, versions json, revision varchar, config_hash varchar,
    segment varchar, extra json
);

create table scenes (
    name varchar, source_hash varchar, compile_hash varchar,
    run_id varchar, step bigint,
    content_hash varchar, source varchar, family varchar, family_seed bigint, split varchar, gmdag varchar,
    resolution bigint, voxel_size double, verdict varchar, triangles bigint, file_bytes bigint,
    compile_seconds double, viable_spawns bigint, best_starvation double, floor_area_m2 double,
    recorded_at timestamp, seed bigint, hardware varchar, versions json, revision varchar, config_hash varchar,
    segment varchar, extra json,
    primary key (name, source_hash, compile_hash)
);

create table checkpoints (
    run_id varchar, step bigint,
    path varchar, sha256 varchar, reward_ema double, episode_count bigint, parent_checkpoint varchar,
    training_source varchar, wall_time_hours double,
    recorded_at timestamp, seed bigint, hardware varchar, versions json, revision varchar, config_hash varchar,
    segment varchar, extra json,
    primary key (run_id, step)
);

create table models (
    version varchar primary key,
    run_id varchar, step bigint,
    checkpoint varchar, weights_hash varchar, file_hash varchar, parents json, training_source varchar,
    encoder_backend varchar, temporal_core varchar, decision_hz double, episode_count bigint, reward_ema double,
    metrics json, notes varchar, tags json, created_at timestamp,
    recorded_at timestamp, seed bigint, hardware varchar, versions json, revision varchar, config_hash varchar,
    segment varchar, extra json
);

create table promotions (
    alias varchar, version varchar, decided_at timestamp,
    run_id varchar, step bigint,
    promoted boolean, previous_version varchar, opponent varchar, reason varchar, evaluation_id varchar,
    mean_difference double, low double, high double,  -- of c_vis_auc, shares of 1
    collisions_difference double, collisions_low double, collisions_high double,  -- per minute
    recorded_at timestamp, seed bigint, hardware varchar, versions json, revision varchar, config_hash varchar,
    segment varchar, extra json,
    primary key (alias, version, decided_at)
);

create table evaluations (           -- means over scenes; c_vis_auc, c_vis, c_visit are shares of 1
    evaluation_id varchar primary key,
    run_id varchar, step bigint,
    subject varchar, subject_kind varchar, weights_hash varchar, model_version varchar, split varchar,
    deterministic boolean, eval_config_hash varchar, config json,
    scenes bigint, starts bigint, episodes bigint, max_steps bigint,
    c_vis_auc double, c_vis_auc_low_percent double, c_vis_auc_high_percent double, c_vis_auc_iqm_percent double,
    c_vis double, c_vis_m2 double, c_visit double, c_visit_auc_percent double,
    collisions_per_minute double, collisions_per_minute_median double, collisions_per_100m double,
    collision_free_rate double, path_length_m double, clearance_p5 double, wall_time_seconds double,
    recorded_at timestamp, seed bigint, hardware varchar, versions json, revision varchar, config_hash varchar,
    segment varchar, extra json
);

create table episodes (              -- one flight from one frozen start
    evaluation_id varchar, scene varchar, start bigint,
    run_id varchar, step bigint,
    subject varchar, scene_hash varchar, steps bigint, reachable_m2 double,
    start_x double, start_y double, start_z double, start_yaw double,
    c_vis_auc double, c_vis double, c_vis_m2 double, c_vis_at_100_percent double, c_vis_at_200_percent double,
    c_vis_at_1000_percent double, c_visit double, c_visit_auc_percent double,
    collisions bigint, collisions_per_minute double, collisions_per_100m double, collision_free boolean,
    path_length_m double, clearance_p5 double, seen_per_metre double,
    recorded_at timestamp, seed bigint, hardware varchar, versions json, revision varchar, config_hash varchar,
    segment varchar, extra json,
    primary key (evaluation_id, scene, start)
);

create table stage_timings (
    run_id varchar, step bigint, stage varchar,
    milliseconds double, total_milliseconds double,
    recorded_at timestamp, seed bigint, hardware varchar, versions json, revision varchar, config_hash varchar,
    segment varchar, extra json,
    primary key (run_id, step, stage)
);

create table benchmarks (
    run_id varchar, name varchar,
    step bigint, value double, unit varchar,
    recorded_at timestamp, seed bigint, hardware varchar, versions json, revision varchar, config_hash varchar,
    segment varchar, extra json,
    primary key (run_id, name)
);

create table events (
    run_id varchar, step bigint, event varchar, recorded_at timestamp,
    detail varchar,
    seed bigint, hardware varchar, versions json, revision varchar, config_hash varchar,
    segment varchar, extra json,
    primary key (run_id, step, event, recorded_at)
);
