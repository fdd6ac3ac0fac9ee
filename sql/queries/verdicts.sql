-- Verdicts: every comparison in a sentence, the latest first; trained_on counts scenes a side had known.
select date_trunc('second', recorded_at) as compared_at, metric, a, b, round(mean_difference, 2) as difference,
       round(low, 2) as low, round(high, 2) as high, better, worse, seeds, looks, scenes, a_trained_on, b_trained_on, "over",
       sentence
from comparisons left join comparison_scenes using (comparison_id)
left join comparison_looks using (comparison_id, metric) order by recorded_at desc limit 40;
