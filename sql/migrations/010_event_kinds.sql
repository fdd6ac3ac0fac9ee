-- `kind` is another name of `event`: what a run announces on its event bus.

alter table events add column kind varchar;
update events set kind = event;
