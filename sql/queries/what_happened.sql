-- The last fifty events with a description: nights, gates, alarms, stale runs, adaptations, early stops.
select recorded_at, event, detail, run_id from events where detail is not null order by recorded_at desc limit 50;
