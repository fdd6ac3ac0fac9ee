-- Quantile of Student's t for a 95 % interval by degrees of freedom, within 0.1 %; null below one.
create or replace macro student_t(freedom) as case
    when freedom < 1 then null
    when freedom <= 10 then [12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281][freedom::bigint]
    else 1.959964 + 2.372271 / freedom + 2.822550 / freedom ** 2 + 2.9 / freedom ** 3
end;
-- Bound of the 95 % interval of a mean percentage, of its standard error and degrees of freedom: by the logit, which
-- keeps it within 0 and 100. side is -1 for the lower bound and 1 for the upper one.
create or replace macro percent_bound(mean, error, freedom, side) as case
    when student_t(freedom) is null or error is null then null
    when error = 0 or mean <= 0 or mean >= 100 then mean
    else 100 / (1 + exp(-(ln(mean / (100 - mean)) + side * student_t(freedom) * 100 * error / (mean * (100 - mean)))))
end;
