"""What people say to the fund assistant: wordings by intent and language, and the names they use. Data only, for `fund_synthetic`.

Of each list the last two entries belong to test, the two before them to dev, the rest to training (`share`): no split sees another's
wordings. Accounts, symbols and payees are split in the same way. Every wording whose tool is check_market_status has a market word,
so that the misuse penalty (seed 003, section 3.6.2) never falls on a right answer; a test looks.
"""

SPLITS = ("train", "dev", "test")
ACCOUNTS = {"train": (100, 599), "dev": (600, 799), "test": (800, 999)}  # numbers after ACC, both ends included
SYMBOLS = {
    "train": ("AMZN", "MSFT", "NVDA", "TSLA", "INTC", "ORCL", "ADBE", "CSCO", "PEP", "KO", "WMT", "DIS", "NKE", "IBM", "SAP", "TM"),
    "dev": ("GOOG", "AMD", "QCOM", "COST", "SONY", "UPS"),
    "test": ("AAPL", "META", "NFLX", "BABA", "SHEL", "MCD"),
}
PAYEES = {
    "train": {"en": ("my sister", "the landlord", "Priya", "the wealth pot", "Tom Becker", "the tax office"),
              "zh": ("我妹妹", "房东", "小李", "理财账户", "王强", "税务局")},
    "dev": {"en": ("my brother", "the gym", "Elena"), "zh": ("我哥", "健身房", "陈晨")},
    "test": {"en": ("my mother", "the garage", "Ahmed"), "zh": ("我妈", "修车行", "赵敏")},
}
DAYS = {"en": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday"), "zh": ("周一", "周二", "周三", "周四", "周五")}
OPENERS = {
    "en": ("", "", "Hi! ", "Good morning. ", "Quick question: ", "", "Hey there. ", "", "Hello assistant. "),
    "zh": ("", "", "你好，", "早上好，", "请教一下：", "", "在吗？", "", "助手你好，"),
}

# intent: (tool, category, {language: wordings})
INTENTS = {
    "balance": ("check_balance", "simple", {
        "en": ("How much money is in {account}?", "Show me the balance of {account}.", "What do I have left in {account} right now?",
               "Could you look up the cash in {account}?", "I'd like to know what {account} holds.",
               "Tell me the current balance for {account}.",
               "What's sitting in {account} at the moment?", "Please read me the total of {account}.",
               "How rich is {account} today?", "Give me the state of {account} in cash."),
        "zh": ("{account} 里有多少钱？", "查看 {account} 的余额。", "帮我看下 {account} 还剩多少。", "{account} 现在的可用资金是多少？",
               "我想知道 {account} 的余额。", "{account} 账上还有钱吗，有多少？", "麻烦报一下 {account} 的现金。", "{account} 目前余额几何？",
               "{account} 剩余资金给我看看。", "告诉我 {account} 账户里的数目。")}),
    "transfer": ("transfer_funds", "simple", {
        "en": ("Transfer {amount} to {to}.", "Send {amount} over to {to}.", "I want to move {amount} to {to}.",
               "Please pay {amount} to {to}.",
               "Wire {amount} to {to} for me.", "Can {amount} go to {to}, please?", "Let {to} have {amount} from my cash.",
               "{to} should get {amount} from me.", "Forward {amount} to {to}.", "Make a payment of {amount} in favour of {to}."),
        "zh": ("转{amount}给{to}。", "向{to}转账{amount}。", "帮我把{amount}打给{to}。", "我要汇{amount}给{to}。", "请给{to}转{amount}。",
               "{to}那边转{amount}过去。", "划{amount}到{to}。", "给{to}汇过去{amount}。", "{to}要收{amount}，请转。", "付给{to}{amount}。")}),
    "withdraw": ("withdraw_funds", "simple", {
        "en": ("Withdraw {amount} from {account}, I know the money is there.", "Cash out {amount} from {account} now.",
               "Pay {amount} out of {account} to my bank card.", "Get {amount} out of {account}, no need to look first.",
               "Take {amount} off {account} and send it to my card.", "I want {amount} of {account} in cash today, go ahead.",
               "Release {amount} from {account} to my bank.", "Move {amount} from {account} onto my debit card.",
               "Payout of {amount} from {account}, please do it.", "Debit {account} by {amount} and hand it to my bank."),
        "zh": ("从 {account} 提现{amount}，余额我确认过了。", "{account} 取{amount}到银行卡。", "直接从 {account} 提{amount}出来。", "把 {account} 的{amount}提到我的卡上。",
               "我要从 {account} 取现{amount}，不用再查。", "{account} 提款{amount}，马上办。", "将 {account} 里{amount}转出到银行卡。", "{account} 出金{amount}。",
               "请把{amount}从 {account} 提走。", "{account} 那边支取{amount}。")}),
    "order": ("place_order", "simple", {
        "en": ("{Side} {n} shares of {symbol}.", "Please {side} {n} {symbol}.", "I want to {side} {n} units of {symbol}.",
               "Put in an order to {side} {n} {symbol}.",
               "{Side} me {n} {symbol} at the current price.", "Go ahead and {side} {n} {symbol} shares.", "Order: {side} {n} x {symbol}.",
               "My wish is to {side} {n} of {symbol}.", "Kindly {side} {symbol}, {n} pieces.", "{symbol}: {side} {n}."),
        "zh": ("{side}{n}股{symbol}。", "帮我{side} {symbol} {n}股。", "我想{side}{n}股 {symbol}。", "下单{side} {symbol}，数量{n}。",
               "按现价{side}{n}股{symbol}。",
               "请{side}{symbol}共{n}股。", "{symbol} {side} {n}股。", "委托{side}{symbol}{n}股。", "{symbol} 给我{side}{n}股。",
               "来一笔：{side}{symbol}，{n}股。")}),
    "history": ("get_transaction_history", "simple", {
        "en": ("Show my transactions in {symbol}.", "List everything I did with {symbol}.", "What trades have I made in {symbol}?",
               "I need the record of my {symbol} deals.", "Pull up past activity for {symbol}.", "Which {symbol} transactions are on file?",
               "Print my {symbol} log.", "Can I see earlier {symbol} bookings?", "Look back at my {symbol} dealings.",
               "My {symbol} statement, please."),
        "zh": ("查一下我 {symbol} 的交易记录。", "列出我在 {symbol} 上的所有操作。", "我买卖过哪些 {symbol}？", "需要 {symbol} 的成交明细。", "调出 {symbol} 的历史流水。",
               "{symbol} 的往来记录有哪些？", "{symbol} 以前的单子给我看看。", "打印 {symbol} 的流水。", "回顾一下我 {symbol} 的操作。", "{symbol} 的对账单发我。")}),
    "market": ("check_market_status", "simple", {
        "en": ("Is the market open on {day} at {time}?", "What is the market status this {day}, {time}?",
               "It's {day}, {time}: is the exchange trading?",
               "Has the exchange closed already? My clock says {day} {time}.", "Tell me whether the market runs at {time} on {day}.",
               "Market open or shut, {day} {time}?", "Does the exchange work now ({day} {time})?",
               "{day}, {time}. What's the market doing, open?",
               "{time} on a {day}: exchange still on?", "Are we within trading hours ({day}, {time})?"),
        "zh": ("{day}{time}开市了吗？", "现在{day}{time}，市场状态如何？", "{day}{time}，交易所还开着吗？", "{day}{time}是不是已经闭市了？", "{day}的{time}在交易时间内吗？",
               "{day}{time}，开盘没有？", "请看看{day}{time}市场开没开。", "{day}{time}收盘了没？", "{time}，今天{day}，休市吗？", "{day}{time}交易所营业吗？")}),
    "unsure_withdraw": ("check_balance",
                        "simple", {  # ambiguous on purpose (seed 003, section 7.7): looking first and acting at once are both sound
        "en": ("Withdraw {amount} from {account}.", "I need to take {amount} out of {account}.",
               "Can I get {amount} from {account} tonight?",
               "I'd like to have {amount} out of {account}.", "My {account} did well, may I cash {amount}?",
               "Please let me withdraw {amount}, account {account}.",
               "Let me draw {amount} on {account}.", "{amount} out of {account}, is that possible?", "Would {account} give me {amount}?",
               "Thinking of pulling {amount} from {account}."),
        "zh": ("从 {account} 提现{amount}。", "我需要从 {account} 取{amount}。", "今晚能从 {account} 提{amount}吗？", "我想从 {account} 拿{amount}出来。",
               "{account} 赚了点，可以提{amount}吗？", "请让我从 {account} 取出{amount}。", "{account} 能取{amount}不？", "想从 {account} 支{amount}。",
               "{account} 够我提{amount}吗？", "考虑从 {account} 提走{amount}。")}),
    "settlement": ("get_transaction_history", "domain", {
        "en": ("I sold {symbol} this morning, when will the cash be there?", "Sold my {symbol} on {day}. When do I get the money?",
               "When does the money from selling {symbol} on {day} arrive?",
               "I got rid of {symbol} on {day} and see no cash yet, when is it due?",
               "How long until my {symbol} sale of {day} pays out?",
               "{symbol} was sold {day} afternoon, on which day can I use the proceeds?",
               "The {symbol} position went on {day}; arrival date of the funds?", "{day} I unloaded {symbol}. Money when?",
               "Proceeds of {symbol}, sold {day}: due date?", "After {day}'s sale of {symbol}, how many days of waiting?"),
        "zh": ("今天上午卖了 {symbol}，钱几时到？", "我{day}卖出的 {symbol}，资金哪天到账？", "{day}卖掉 {symbol} 的钱什么时候能用？", "{day}清了 {symbol}，怎么还没见到钱，哪天来？",
               "{symbol} {day}卖的，还要等多久到账？", "{day}下午卖出 {symbol}，款项何日可用？", "{day}抛了 {symbol}，回款日期是？", "{symbol} 的卖出款（{day}）啥时候结算？",
               "{day}出的 {symbol}，到账日是哪天？", "{day}卖 {symbol} 后要等几天拿钱？")}),
    "settled": ("check_balance", "domain", {
        "en": ("The sale of {symbol} settled last week. How much can I spend from {account}?",
               "{symbol} proceeds arrived long ago; what is free in {account}?",
               "Since my {symbol} money came in already, what does {account} show?",
               "My {symbol} cash was booked days ago, how much is usable in {account}?",
               "With {symbol} fully settled, what's available in {account}?", "{symbol} is paid out. Now the free sum in {account}?",
               "Now that {symbol} has cleared, what can {account} afford?", "{symbol} cleared ages ago: spendable money in {account}?",
               "Everything from {symbol} is booked, so what's {account} worth in cash?",
               "{account} after the cleared {symbol} sale: how much?"),
        "zh": ("{symbol} 的卖款上周已到账，{account} 现在能用多少？", "{symbol} 早就结算了，{account} 可用多少钱？", "{symbol} 的钱已经入账，{account} 显示多少？",
               "{symbol} 回款几天前到了，{account} 有多少能花？", "{symbol} 已全部交收，{account} 可用资金多少？", "{symbol} 款已付，{account} 余下多少？",
               "{symbol} 交收完毕，{account} 还能动用多少？", "{symbol} 老早到账，{account} 可支配多少？", "{symbol} 都入账了，{account} 值多少现金？",
               "{symbol} 结清之后 {account} 多少钱？")}),
    "hours": ("check_market_status", "intraday", {
        "en": ("It's {time} on {day}. Can I still trade before the market closes?",
               "{day} {time}: is it too late for the exchange to take an order?",
               "At {time} on {day}, would the market still accept a purchase?",
               "My watch shows {time}, {day}. Am I inside trading hours for buying?",
               "Could an order reach the exchange at {time} this {day}?", "{time}, {day}. Does the market let me deal right now?",
               "If I want to deal at {time} on {day}, is the market there?", "Has the trading session ended for me at {time}, {day}?",
               "{day}, {time}, is buying possible or is the exchange done?", "Any market left for an order at {time} on {day}?"),
        "zh": ("现在是{day}{time}，收盘前还能下单吗？", "{day}{time}，交易所还接单吗？", "{day}{time}买入，市场还受理吗？", "{day}{time}，我还在交易时间里吗，能买吗？",
               "{day}{time}委托能进市场吗？", "{time}（{day}）闭市前来得及下单不？", "{day}{time}想成交，开市着吗？", "{day}{time}交易时间过了吗，还能挂单？",
               "{day}{time}还能买，还是交易所停了？", "{day}{time}，市场还给下单机会吗？")}),
    "session_order": ("place_order", "intraday", {
        "en": ("It's {time} on {day} and the market is open: {side} {n} {symbol}.",
               "{day}, {time}, trading is on. {Side} {n} {symbol} before the close.",
               "The exchange opened, it is {time} ({day}); {side} {n} {symbol} now.",
               "We're in trading hours ({day} {time}), so {side} {n} {symbol}.",
               "Market runs, {time} {day}: please {side} {n} shares of {symbol}.",
               "{time} on {day}; before the market shuts, {side} {n} {symbol}.",
               "With the exchange open at {time} this {day}, {side} {n} {symbol}.", "{day} {time}, session on, go {side} {n} {symbol}.",
               "Still {time}, {day}, market live: {side} {symbol}, {n} pieces.",
               "Don't miss the close, {time} {day}: {side} {n} {symbol}."),
        "zh": ("现在{day}{time}，已开市，{side}{n}股{symbol}。", "{day}{time}，收盘前{side}{n}股{symbol}。", "交易所开着（{day}{time}），{side}{symbol}{n}股。",
               "{day}{time}在交易时间内，帮我{side}{n}股{symbol}。", "市场开着，{day}{time}，请{side}{n}股{symbol}。", "{day}{time}，闭市前{side}{symbol}{n}股。",
               "{day}{time}开盘中，{side}{symbol}，{n}股。", "趁{day}{time}没收盘，{side}{n}股{symbol}。", "{day}{time}市场还在，{symbol}{side}{n}股。",
               "别错过收盘，{day}{time}{side}{n}股{symbol}。")}),
    "filled": ("get_transaction_history", "intraday", {
        "en": ("Did my {symbol} order of {time} on {day} go through before the close?",
               "Was the {symbol} order from {day} {time} filled while the market was open?",
               "I ordered {symbol} at {time} on {day}; did it make the session?", "What became of my {symbol} order, {day} {time}?",
               "Check that {symbol} got executed in {day}'s session at {time}.",
               "My {time} order of {symbol} on {day}: done in time for the close?",
               "{symbol} order, {day} at {time}: executed or not?", "Was I in time with {symbol} at {time} on {day}?",
               "Did the exchange carry out {symbol} for me at {time}, {day}?", "Outcome of the {symbol} order given {day}, {time}?"),
        "zh": ("我{day}{time}的 {symbol} 单子收盘前成交了吗？", "{day}{time}下的 {symbol} 委托，开市期间成交没有？", "{day}{time}买的 {symbol} 赶上了吗？",
               "{symbol} 那笔{day}{time}的委托结果如何？",
               "看看 {symbol} {day}{time}那单是否成交。", "{day}{time}的 {symbol} 订单赶在闭市前了吗？", "{symbol}（{day}{time}）成交了还是没有？",
               "{day}{time}挂的 {symbol} 成了没？",
               "{day}{time}交易所执行我的 {symbol} 了吗？", "{symbol} 委托（{day}{time}）最后怎样？")}),
}

# One step inside a longer request. {first} ... of LINKS are such clauses.
CLAUSES = {
    "transfer_funds": {
        "en": ("transfer {amount} to {to}", "send {amount} to {to}", "pay {to} {amount}", "move {amount} over to {to}",
               "wire {amount} to {to}", "hand {amount} to {to}", "remit {amount} to {to}", "give {to} {amount}"),
        "zh": ("转{amount}给{to}", "向{to}汇{amount}", "付{to}{amount}", "给{to}打{amount}", "划{amount}到{to}", "给{to}转去{amount}",
               "汇给{to}{amount}", "拨{amount}给{to}")},
    "withdraw_funds": {
        "en": ("withdraw {amount}", "cash out {amount}", "take out {amount}", "pull out {amount}", "pay out {amount} to my card",
               "draw {amount} in cash", "get {amount} onto my card", "release {amount} to my bank"),
        "zh": ("提现{amount}", "取出{amount}", "提{amount}到卡上", "取现{amount}", "提款{amount}", "支取{amount}", "提走{amount}", "出金{amount}")},
    "place_order": {
        "en": ("{side} {n} {symbol}", "{side} {n} shares of {symbol}", "order {symbol}: {side} {n}", "{side} {symbol}, {n} pieces",
               "go and {side} {n} {symbol}", "{side} {n} units of {symbol}", "place a {side} of {n} {symbol}", "{side} {n} of {symbol}"),
        "zh": ("{side}{n}股{symbol}", "{side}{symbol}共{n}股", "下单{side}{symbol}{n}股", "{symbol}{side}{n}股", "委托{side}{n}股{symbol}",
               "帮我{side}{symbol} {n}股", "挂单{side}{symbol}{n}股", "{side}{symbol}，{n}股")},
    "get_transaction_history": {
        "en": ("show me the {symbol} record", "list my {symbol} trades", "pull up the {symbol} history",
               "print the {symbol} transactions", "read out the {symbol} log", "give me the {symbol} bookings",
               "bring up {symbol} activity", "show past {symbol} deals"),
        "zh": ("查{symbol}的流水", "列出{symbol}的交易", "看{symbol}的记录", "调出{symbol}明细", "给我{symbol}的历史", "显示{symbol}往来", "拉一下{symbol}的单子",
               "报{symbol}的成交")},
    "check_balance": {
        "en": ("check the balance of {account}", "look up {account}", "tell me what {account} holds", "see how much {account} has",
               "read the balance of {account}", "look into {account}", "tell me the cash in {account}", "review {account}"),
        "zh": ("查{account}的余额", "看看{account}有多少钱", "查一下{account}", "看{account}余额", "报{account}的钱数", "查清{account}资金", "瞧瞧{account}余额",
               "核对{account}")},
}
LINKS = {
    2: {"en": ("{first}, then {second}.", "First {first} and after that {second}.", "Please {first}; once done, {second}.",
               "I want you to {first}, next {second}.",
               "{first} and afterwards {second}.", "Start with this: {first}. Follow with: {second}.", "Before you {second}, {first}.",
               "Two things in order: {first}; {second}."),
        "zh": ("{first}，再{second}。", "先{first}，然后{second}。", "{first}，完成后{second}。", "请{first}，接着{second}。", "{first}之后{second}。",
               "第一步{first}，第二步{second}。", "{second}之前先{first}。", "两件事按顺序：{first}；{second}。")},
    3: {"en": ("{first}, then {second}, then {third}.", "First {first}, next {second}, at last {third}.",
               "Please {first}; after it {second}; finally {third}.", "In this order: {first}, {second}, {third}.",
               "Begin: {first}. Go on: {second}. End: {third}.", "{first} and {second}, with {third} at the end.",
               "Three jobs, one by one: {first}; {second}; {third}.", "Only after you {first} and {second}, {third}."),
        "zh": ("{first}，再{second}，最后{third}。", "先{first}，然后{second}，接着{third}。", "请依次{first}、{second}、{third}。",
               "{first}完了{second}，再{third}。", "一是{first}，二是{second}，三是{third}。", "{first}和{second}做完后{third}。",
               "三件事逐个办：{first}；{second}；{third}。", "等{first}、{second}都好了，{third}。")},
}
# (condition, whether there is an else): the first step looks, what it finds decides the second.
CONDITIONS = {
    ("balance", False): {"en": ("Check {account} first, and if there is enough {second}.",
     "Look at {account}; provided the cash suffices, {second}.", "See what {account} has and, if it covers this, {second}.",
     "How much is in {account}? If enough, {second}.",
                                "Balance of {account} please, and when it suffices {second}.",
                                "If {account} can bear it after a look, {second}.",
                                "After checking that {account} is good for it, {second}.",
                                "Consult {account}; should it be sufficient, {second}."),
                         "zh": ("先查{account}余额，够的话{second}。", "看看{account}，钱够就{second}。", "查{account}，足够则{second}。",
                                "{account}有多少？够了就{second}。", "先确认{account}余额，充足就{second}。", "若{account}查后够用，{second}。",
                                "核对{account}足够后{second}。", "查查{account}，要是够，{second}。")},
    ("balance", True): {"en": ("Check {account}: with at least {limit} there {second}, otherwise {other}.",
     "Look at {account}; if it has {limit} or more {second}, else {other}.",
     "If a look at {account} shows {limit} or above, {second}; if not, {other}.",
     "See {account}. {limit} or more: {second}. Less: {other}.",
                               "Read {account}; from {limit} upward {second}, below that {other}.",
                               "Is there {limit} in {account}? Yes: {second}. No: {other}.",
                               "Depending on {account} reaching {limit}, {second} or else {other}.",
                               "Consult {account}: {second} given {limit}, failing that {other}."),
                        "zh": ("查{account}，有{limit}以上就{second}，否则{other}。", "看{account}，不少于{limit}则{second}，不然{other}。",
                               "如果{account}查到有{limit}，{second}；没有就{other}。", "先看{account}：够{limit}，{second}；不够，{other}。",
                               "{account}达到{limit}就{second}，不到就{other}，先查。", "{account}有没有{limit}？有就{second}，没有就{other}。",
                               "视{account}是否满{limit}，{second}或{other}。", "查{account}：满{limit}{second}，要不{other}。")},
    ("gain", True): {"en": ("Look at my holdings in {account}; if {held} is up more than {gain} %, {second}, otherwise {other}.",
     "Check {account}: should {held} have gained over {gain} %, {second}, else {other}.",
     "If {held} in {account} made above {gain} %, {second}; if not, {other}. Look first.",
     "See how {held} does in {account}. Over {gain} % profit: {second}. Not so: {other}.",
                            "Review {account}; {held} beyond +{gain} % means {second}, anything less means {other}.",
                            "Has {held} in {account} risen past {gain} %? Yes: {second}. No: {other}.",
                            "Given more than {gain} % on {held} ({account}), {second}, failing that {other}.",
                            "Inspect {account}: {second} when {held} beats {gain} %, or else {other}."),
                     "zh": ("查{account}的持仓，{held}盈利超过{gain}%就{second}，否则{other}。", "看{account}，{held}涨了{gain}%以上则{second}，不然{other}。",
                            "如果{account}里{held}赚过{gain}%，{second}；没有就{other}。", "先看{account}：{held}盈利过{gain}%，{second}；没到，{other}。",
                            "{account}的{held}收益高于{gain}%就{second}，低了就{other}，先查。", "{account}中{held}有没有赚{gain}%以上？有就{second}，没有就{other}。",
                            "视{account}的{held}是否盈利逾{gain}%，{second}或{other}。", "翻翻{account}：{held}超{gain}%{second}，要不{other}。")},
    ("open", True): {"en": ("See whether the market is open; if so {second}, otherwise {other}.",
     "Check the exchange: open means {second}, closed means {other}.", "If the market runs, {second}; if not, {other}. Look first.",
     "Is the exchange trading? Yes: {second}. No: {other}.",
                            "Find out about the market; when it is on {second}, when off {other}.",
                            "Market status first. Open: {second}. Shut: {other}.",
                            "Depending on the exchange being open, {second} or else {other}.",
                            "Given an open market {second}, failing that {other}; check it."),
                     "zh": ("看市场开没开，开了就{second}，没开就{other}。", "查开市情况，开市则{second}，闭市则{other}。", "如果交易所开着，{second}；否则{other}，先查。",
                            "现在开市吗？是就{second}，不是就{other}。",
                            "先问市场，开着{second}，关着{other}。", "市场状态先查：开，{second}；休，{other}。", "视交易所是否开市，{second}或{other}。",
                            "开盘了就{second}，要不{other}，查一下。")},
}


def share(items, split):
    """The part of a list of wordings that a split may use, as (index, wording)."""
    cuts = {"train": (0, len(items) - 4), "dev": (len(items) - 4, len(items) - 2), "test": (len(items) - 2, len(items))}[split]
    return list(enumerate(items))[slice(*cuts)]
