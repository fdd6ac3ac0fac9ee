-- Results of every asset check, the latest first; changed marks those that ended otherwise than the time before.
-- check: name of an asset check; by default all
-- asset: name of an asset; by default all
select date_trunc('second', recorded_at) as recorded_at, asset, partition, check_name, passed, severity,
       passed <> lag(passed) over (partition by asset, partition, check_name order by checks.recorded_at) as changed,
       description, dagster_run_id, host, user, revision
from checks
where check_name = coalesce(getvariable('check'), check_name) and asset = coalesce(getvariable('asset'), asset)
order by checks.recorded_at desc limit 100;
