-- Where the latest run spent its time.
select stage, mean_ms, percent from stage_breakdown
where run_id = (select run_id from run_summary limit 1);
