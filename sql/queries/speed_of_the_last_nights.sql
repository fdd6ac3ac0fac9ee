-- The numbers of the nightly benchmark, the last ten nights.
select recorded_at, cell, name, value, unit, change_percent, revision from benchmark_history
where benchmark = 'nightly' order by recorded_at desc, cell, name limit 60;
