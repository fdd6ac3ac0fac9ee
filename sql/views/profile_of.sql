-- How large a cell was. Rows of older archives have a sweep's profile only among their parameters; an ablation has none,
-- and is distinguished by its preset, steps and scenes.
create or replace macro profile_of(profile, parameters) as coalesce(
    profile,
    json_extract_string(parameters, '$.profile'),
    nullif(concat_ws(', ',
        json_extract_string(parameters, '$.preset'),
        'steps ' || json_extract_string(parameters, '$.steps'),
        'scenes ' || json_extract_string(parameters, '$.scenes')
    ), '')
);
