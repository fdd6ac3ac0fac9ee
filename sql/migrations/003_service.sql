-- What a service learns from, and what became of the versions it made.

create table service_experiences (   -- one completed decision
    run_id varchar, number bigint,
    step bigint, session_id bigint, model_version bigint,
    x double, y double, z double, yaw double, action json, log_prob double, value double,
    gate_send boolean, expected_reward double, components json, actual_reward double, effective_reward double,
    recorded_at timestamp, seed bigint, hardware varchar, versions json, revision varchar, config_hash varchar,
    segment varchar, extra json,
    primary key (run_id, number)
);

create table service_versions (
    run_id varchar, model_version bigint, fate varchar,   -- trained, admitted, held, rolled_back
    step bigint, loss double, samples bigint, live_reward double, shadow_difference double, returned_to bigint,
    recorded_at timestamp, seed bigint, hardware varchar, versions json, revision varchar, config_hash varchar,
    segment varchar, extra json,
    primary key (run_id, model_version, fate)
);
