-- Coverage of a limited sensor: floor within its sector and range.

alter table evaluations add column c_seen_auc_percent double;
alter table evaluations add column c_seen_final_percent double;
alter table episodes add column c_seen_auc_percent double;
alter table episodes add column c_seen_final_percent double;
