-- The inputs of a subject and the weights that its training began with; recovery, height and way of its flights.

alter table evaluations add column initial varchar;
alter table evaluations add column inputs varchar;
alter table evaluations add column recovery_steps bigint;
alter table evaluations add column height_mean double;
alter table evaluations add column height_max double;
alter table evaluations add column c_vis_steps_to_95_median double;
alter table evaluations add column c_vis_metres_to_90_median double;
alter table evaluations add column c_vis_metres_to_95_median double;
alter table episodes add column recovery_steps bigint;
alter table episodes add column height_mean double;
alter table episodes add column height_max double;
alter table episodes add column c_vis_steps_to_95 bigint;
alter table episodes add column c_vis_metres_to_90 double;
alter table episodes add column c_vis_metres_to_95 double;
