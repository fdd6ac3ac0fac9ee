-- Comparisons, point-goal flights, and what evaluations measured beside coverage of the floor.

create table comparisons (           -- a − b of one metric over paired flights, with its 95 % interval
    comparison_id varchar, metric varchar,
    run_id varchar, step bigint,
    a varchar, b varchar, task varchar,
    "over" varchar,                  -- scenes and starts: two subjects as they are; seeds and scenes: ways of training
    mean_a double, mean_b double, iqm_a double, iqm_b double,
    mean_difference double, low double, high double, degrees_of_freedom double,
    better boolean, worse boolean, seeds bigint, scenes bigint, episodes bigint, sentence varchar,
    evaluations json,                -- {"a": [evaluation_id, …], "b": […]}
    profiles json,                   -- {"thresholds": […], "profile_a": […], "profile_b": […]}, of seeds alone
    matrices json,                   -- {"scenes": […], "a": seeds × scenes, "b": …}, of seeds alone
    recorded_at timestamp, seed bigint, hardware varchar, versions json, revision varchar, config_hash varchar,
    segment varchar, extra json,
    primary key (comparison_id, metric)
);

-- success is a share over scenes; spl and soft_spl lie in [0, 1]; geodesic and goal_distance in metres.
alter table evaluations add column task varchar;
alter table evaluations add column success double;
alter table evaluations add column spl double;
alter table evaluations add column soft_spl double;
alter table evaluations add column goal_distance double;
alter table evaluations add column sensor varchar;
alter table evaluations add column collisions_per_100m_median double;
alter table evaluations add column c_surf_auc_percent double;
alter table evaluations add column c_surf_final_percent double;
alter table evaluations add column c_surf_m2 double;
alter table evaluations add column c_vis_steps_to_50_median double;
alter table evaluations add column c_vis_steps_to_75_median double;
alter table evaluations add column c_vis_steps_to_90_median double;

alter table episodes add column task varchar;
alter table episodes add column sensor varchar;
alter table episodes add column success boolean;
alter table episodes add column spl double;
alter table episodes add column soft_spl double;
alter table episodes add column geodesic double;
alter table episodes add column goal_distance double;
alter table episodes add column goal_x double;
alter table episodes add column goal_y double;
alter table episodes add column goal_z double;
alter table episodes add column c_surf_auc_percent double;
alter table episodes add column c_surf_final_percent double;
alter table episodes add column c_surf_m2 double;
alter table episodes add column c_surf_at_100_percent double;
alter table episodes add column c_surf_at_200_percent double;
alter table episodes add column c_surf_at_1000_percent double;
alter table episodes add column c_vis_steps_to_50 bigint;
alter table episodes add column c_vis_steps_to_75 bigint;
alter table episodes add column c_vis_steps_to_90 bigint;
alter table episodes add column c_surf_steps_to_50 bigint;
alter table episodes add column c_surf_steps_to_75 bigint;
alter table episodes add column c_surf_steps_to_90 bigint;
