-- Decisions per second by resolution and commit: of trainings that see panoramas, and of the sweep over resolutions.
-- resolution: azimuth x elevation bins, such as 64x16; by default all
-- revision: commit, or its beginning; by default all
with trained as (
    select (config ->> '$.env.azimuth_bins') || 'x' || (config ->> '$.env.elevation_bins') as resolution,
           'training ' || core as what, runs.revision, device, runs.hardware, steps_per_second as speed, runs.recorded_at
    from runs join run_speed using (run_id)
    where config ->> '$.task' is null
),
benched as (
    select cell, benchmark, revision, null, hardware, value, recorded_at
    from benchmark_cells where benchmark = 'resolution_sweep' and name = 'steps_per_second'
)
select resolution, what, revision, count(*) as runs, round(median(speed), 1) as steps_per_second,
       round(min(speed), 1) as low, round(max(speed), 1) as high, device, hardware,
       date_trunc('second', max(recorded_at)) as recorded_at
from (from trained union all from benched)
where resolution = coalesce(getvariable('resolution'), resolution)
      and starts_with(coalesce(revision, ''), coalesce(getvariable('revision'), ''))
group by resolution, what, revision, device, hardware
order by split_part(resolution, 'x', 1)::bigint * split_part(resolution, 'x', 2)::bigint, what, max(recorded_at) desc;
