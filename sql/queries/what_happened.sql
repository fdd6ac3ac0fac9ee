-- The last fifty events: nights, gates, alarms, sweeps of stale runs.
select recorded_at, event, detail, run_id from events order by recorded_at desc limit 50;
