-- How often a pair of ways of training was looked at: the comparison itself, and those of part of its seeds at which a
-- verdict could be said. Seeds that are added until something shows find a difference more often than 5 % of the time.
create or replace view comparison_looks as
with sides as (
    select comparison_id, metric, "over", seeds,
           json_extract_string(evaluations, '$.a[*]') as a, json_extract_string(evaluations, '$.b[*]') as b
    from comparisons
)
select later.comparison_id, later.metric, 1 + count(earlier.comparison_id) as looks
from sides later
left join sides earlier
    on later."over" = 'seeds and scenes' and earlier."over" = later."over"
    and earlier.metric = later.metric and earlier.seeds between 5 and later.seeds - 1
    and list_has_all(later.a, earlier.a) and list_has_all(later.b, earlier.b)
group by later.comparison_id, later.metric;
