from fedhold.audit.live import watch
from fedhold.audit.metrics import unusable_metrics
from fedhold.audit.page import find_audit, report_audit
from fedhold.audit.records import NodeRecord, RoundRecord, append, told

__all__ = ["NodeRecord", "RoundRecord", "append", "find_audit", "report_audit", "told", "unusable_metrics", "watch"]
