-- Who made a row: machine, user and Dagster run; null in older rows. `revision` ends with + where files differed from it.

alter table metrics add column host varchar;
alter table metrics add column user varchar;
alter table metrics add column dagster_run_id varchar;
alter table runs add column host varchar;
alter table runs add column user varchar;
alter table runs add column dagster_run_id varchar;
alter table scenes add column host varchar;
alter table scenes add column user varchar;
alter table scenes add column dagster_run_id varchar;
alter table checkpoints add column host varchar;
alter table checkpoints add column user varchar;
alter table checkpoints add column dagster_run_id varchar;
alter table models add column host varchar;
alter table models add column user varchar;
alter table models add column dagster_run_id varchar;
alter table promotions add column host varchar;
alter table promotions add column user varchar;
alter table promotions add column dagster_run_id varchar;
alter table alias_moves add column host varchar;
alter table alias_moves add column user varchar;
alter table alias_moves add column dagster_run_id varchar;
alter table evaluations add column host varchar;
alter table evaluations add column user varchar;
alter table evaluations add column dagster_run_id varchar;
alter table episodes add column host varchar;
alter table episodes add column user varchar;
alter table episodes add column dagster_run_id varchar;
alter table comparisons add column host varchar;
alter table comparisons add column user varchar;
alter table comparisons add column dagster_run_id varchar;
alter table stage_timings add column host varchar;
alter table stage_timings add column user varchar;
alter table stage_timings add column dagster_run_id varchar;
alter table benchmarks add column host varchar;
alter table benchmarks add column user varchar;
alter table benchmarks add column dagster_run_id varchar;
alter table studies add column host varchar;
alter table studies add column user varchar;
alter table studies add column dagster_run_id varchar;
alter table trials add column host varchar;
alter table trials add column user varchar;
alter table trials add column dagster_run_id varchar;
alter table service_experiences add column host varchar;
alter table service_experiences add column user varchar;
alter table service_experiences add column dagster_run_id varchar;
alter table service_versions add column host varchar;
alter table service_versions add column user varchar;
alter table service_versions add column dagster_run_id varchar;
alter table events add column host varchar;
alter table events add column user varchar;
alter table events add column dagster_run_id varchar;

-- What evaluations are flown over: a course by its content. One course may have several names.
create table named_courses (
    course varchar, name varchar,    -- test-16x3x200: split, scenes, starts of each, decisions
    run_id varchar, step bigint,
    task varchar, protocol varchar, scenes json, starts bigint, decisions bigint, sensor varchar, config json,
    recorded_at timestamp, seed bigint, hardware varchar, versions json, revision varchar, config_hash varchar,
    segment varchar, extra json, host varchar, user varchar, dagster_run_id varchar,
    primary key (course, name)
);

create table nights (
    night varchar primary key,
    run_id varchar, step bigint,
    kind varchar, verdict varchar, headline varchar, started_at timestamp, ended_at timestamp,
    settings json, start_version varchar, version varchar, champion varchar, promoted boolean,
    scenes json,                     -- {split: {scene: content hash}}
    gates json,                      -- [{gate, stage, kind, holds, figures}]
    figures json,                    -- {name: number}
    recorded_at timestamp, seed bigint, hardware varchar, versions json, revision varchar, config_hash varchar,
    segment varchar, extra json, host varchar, user varchar, dagster_run_id varchar
);

create table checks (                -- one evaluation of an asset check
    asset varchar, check_name varchar, recorded_at timestamp,
    run_id varchar, step bigint,
    partition varchar, passed boolean, severity varchar, description varchar, metadata json,
    seed bigint, hardware varchar, versions json, revision varchar, config_hash varchar,
    segment varchar, extra json, host varchar, user varchar, dagster_run_id varchar,
    primary key (asset, check_name, recorded_at)
);
