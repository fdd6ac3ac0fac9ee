-- Differences between two nights: settings, weights, scenes, gates, figures, and the code and machine.
-- a: the earlier night; by default the one before the last
-- b: the later night; by default the last
with ordered as (select *, row_number() over (order by started_at desc, night desc) as age from nights),
chosen as (
    select 'a' as side, * from ordered where case when getvariable('a') is null then age = 2 else night = getvariable('a') end
    union all
    select 'b', * from ordered where case when getvariable('b') is null then age = 1 else night = getvariable('b') end
),
facts as (
    select side, '1 night' as part, unnest(['night', 'verdict', 'headline', 'revision', 'hardware', 'host']) as name,
           unnest([night, verdict, headline, revision, hardware, host]) as value
    from chosen
    union all
    select side, '2 setting', each.key, each.value::varchar from chosen, json_each(settings) each
    union all
    select side, '3 weights', unnest(['begins with', 'trained', 'weights of it', 'champion']),
           unnest([start_version, chosen.version, models.weights_hash, champion])
    from chosen left join models on models.version = chosen.version
    union all
    select side, '4 scene', split.key || ' ' || scene.key, left(scene.value ->> '$', 12)
    from chosen, json_each(scenes) split, json_each(split.value) scene
    union all
    select side, '5 gate', concat(gate.value ->> '$.stage', ': ', gate.value ->> '$.gate'),
           concat(gate.value ->> '$.holds', ', ', gate.value ->> '$.figures')
    from chosen, json_each(gates) gate
    union all
    select side, '6 figure', figure.key, figure.value::varchar from chosen, json_each(figures) figure
),
sides as (
    select part, name, max(value) filter (side = 'a') as a, max(value) filter (side = 'b') as b from facts group by part, name
)
select part[3:] as part, name, a, b,
       case when sides.part = '6 figure' then round(try_cast(b as double) - try_cast(a as double), 4) end as change
from sides
where a is distinct from b
      -- A name that no night has would look like a night without anything.
      and case when getvariable('a') not in (select night from nights) then error('no night ' || getvariable('a'))
               when getvariable('b') not in (select night from nights) then error('no night ' || getvariable('b'))
               else true end
order by sides.part, name;
