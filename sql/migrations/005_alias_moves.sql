-- Every move of the registry's aliases: a version that became latest, a promotion, a rollback.

create table alias_moves (
    alias varchar, version varchar, moved_at timestamp,
    run_id varchar, step bigint,
    action varchar,                  -- register, promote or rollback
    recorded_at timestamp, seed bigint, hardware varchar, versions json, revision varchar, config_hash varchar,
    segment varchar, extra json,
    primary key (alias, version, moved_at)
);
