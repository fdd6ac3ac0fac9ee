-- Looks at a pair of ways of training: the comparison itself, and those of part of its seeds at which a
-- verdict was possible. Seeds that are added until something shows find a difference more often than 5 % of the time.
create or replace view comparison_looks as
with sides as (
    select comparison_id, metric, "over", seeds,
           json_extract_string(evaluations, '$.a[*]') as a, json_extract_string(evaluations, '$.b[*]') as b
    from comparisons
),
-- Whoever flew in an earlier look flew in the later one: joined by the first of them, not each with each.
flown as (select distinct * from (select *, unnest(a) as one from sides)),
before as (
    select later.comparison_id, later.metric, count(*) as looks
    from flown later
    join sides earlier
        on earlier.a[1] = later.one and later."over" = 'seeds and scenes' and earlier."over" = later."over"
        and earlier.metric = later.metric and earlier.seeds between 5 and later.seeds - 1
        and list_has_all(later.a, earlier.a) and list_has_all(later.b, earlier.b)
    group by later.comparison_id, later.metric
)
select comparison_id, metric, 1 + coalesce(looks, 0) as looks
from sides left join before using (comparison_id, metric);
