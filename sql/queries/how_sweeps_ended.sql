-- Every cell of every sweep that did not end well: out of memory, crashed, timed out.
select benchmark, profile, cell, repeat, seed, outcome, detail, recorded_at from latest_cells
where coalesce(outcome, 'ok') <> 'ok' order by recorded_at desc;
