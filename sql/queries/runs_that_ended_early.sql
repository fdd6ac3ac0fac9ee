-- Runs that did not finish, and why.
select run_id, status, reason, step, round(wall_time_seconds / 60, 1) as minutes, ended_at from runs
where status <> 'finished' order by recorded_at desc limit 50;
