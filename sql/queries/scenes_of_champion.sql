-- The scenes that the champion and all it descends from flew in training, each back to its mesh; a clone's are its teachers'.
with way as (
    select ancestor as version, depth, runs.run_id, json_extract(config, '$.corpus') as corpus
    from model_lineage
    join models on models.version = model_lineage.ancestor
    join runs on runs.run_id = models.run_id
    where model_lineage.version = (select version from aliases where alias = 'champion')
),
-- A run names its scenes as files; where it names none, the generated families are flown.
named as (
    select version, depth, run_id, unnest(json_extract_string(corpus, '$.scenes[*]')) as file, null as source from way
),
generated as (
    select version, depth, run_id, family, unnest(from_json(families -> family, '["bigint"]')) as number
    from (
        select *, corpus -> 'families' as families, unnest(json_keys(corpus -> 'families')) as family from way
        where json_array_length(corpus, '$.scenes') = 0
          and json_extract_string(corpus, '$.root') is null and json_extract_string(corpus, '$.manifest') is null
    )
),
flown as (
    from named union all select version, depth, run_id, null, family || ':' || number from generated
)
select flown.version, depth, flown.run_id, coalesce(scenes.source, flown.source, file) as mesh,
       left(scenes.source_hash, 16) as source_hash, split, coalesce(scenes.gmdag, file) as gmdag
from flown left join scenes on scenes.gmdag = flown.file or scenes.source = flown.source
qualify row_number() over (partition by flown.version, flown.file, flown.source order by scenes.recorded_at desc) = 1
order by depth, mesh;
